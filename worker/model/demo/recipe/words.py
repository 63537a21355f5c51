"""Word lists of the generator. Everything here is fictional or ordinary English."""

FIRST = """Mara Tomas Ana Pavel Ingrid Leo Nadia Oscar Priya Quentin Rosa Stefan Tilda Ulrich Vera Walter Xenia Yusuf Zora
Adam Alice Amira Anders Anika Anton Arthur Astrid Aurora Beatrice Benno Bianca Bruno Camille Carlos Carmen Cecilia Chiara
Clara Conrad Cora Dalia Daniel Daria David Delia Diego Dora Edgar Edith Elena Elias Elif Emil Emma Enzo Erik Esther Eva
Fabian Farah Felix Fiona Flora Frank Freya Gabriel Georg Gloria Greta Gustav Hana Hannah Harald Hassan Hector Heidi Helena
Henrik Hilda Hugo Ida Igor Iman Irena Iris Isaac Ivan Jana Jasper Jelena Joan Jonas Judith Julia Jun Kai Karim Karin Kenji
Kira Klaus Lara Lars Laura Layla Lena Liam Lina Lorenz Lucia Ludwig Luis Magda Malik Marco Margot Maria Marla Marta Martin
Matteo Maya Mei Milan Mina Mira Nils Nina Noah Nora Olga Omar Otto Paula Petra Philip Rafael Ralf Ravi Renata Rita Robert
Roman Ruth Samir Sandra Sara Sasha Selma Signe Silvia Simon Sofia Sven Sylvie Tariq Teresa Theo Thora Tobias Uma Ursula
Viktor Viola Wanda Wilma Yara Yuki Zeno""".split()

LAST = """Ellison Reed Vole Marsh Lindqvist Okafor Petrov Brandt Castell Duarte Engel Farrow Grant Hollis Ibsen Jansen Keller
Lowe Moreau Novak Osei Parson Quill Rossi Sato Thorne Umber Vance Wells Xu Young Zeller Abbott Acker Adler Alder Almeida
Archer Arden Bailey Baker Barlow Barnes Becker Bell Berg Bianchi Blake Bloom Bowen Brandao Brook Burke Carver Chandra Clarke
Cole Conti Cooper Costa Crane Cross Dahl Dalton Diaz Doyle Drake Dunn Eaton Ekman Eriksen Ferrer Finch Fischer Flynn Ford
Foster Fox Frost Fuentes Garner Gibson Glover Gordon Graves Greene Gupta Haas Hale Hansen Harlow Hayes Hill Hoffman Holm
Horn Hughes Hunt Ito Ivers Jacobs Jensen Kane Kapoor Kaya Kern Khan Kimura King Klein Knox Koch Kovacs Kraus Lang Larsen
Laurent Lehmann Leroy Lind Lopez Lund Maier Marin Mason Mendes Meyer Miller Moore Morris Mueller Nair Nash Nielsen Nolan
Nystrom Olsen Ortega Owens Palmer Park Patel Pereira Pike Porter Price Quinn Rahman Ramos Rask Reyes Rhodes Rivera Roth
Rowe Russo Salas Santos Schmidt Shaw Silva Singh Sloan Soto Steele Stone Strand Tanaka Tate Toth Turner Valdez Vogel Wagner
Walsh Ward Weber West White Winter Wolf Wood Yilmaz Zhang Ziegler""".split()

SYL_A = "Ba Be Bo Bra Ca Ce Co Cla Da De Do Dra El Fa Fe Fi Fre Ga Ge Gra Ha He Ho Il Ja Je Jo Ka Ke Ko Kri La Le Li Lo Ma Me Mi Mo Na Ne No Ol Pa Pe Po Qui Ra Re Ri Ro Sa Se Si So Sta Ta Te To Tri Ul Va Ve Vi Wa We Wil Ya Za Ze".split()
SYL_B = "bal ber bin bor da del den dor fan fer gar gel go ka ker ki la lan len li lo ma man mel mi mo na nar ne ni no pa per ra rel ren ri ro sa sen si ta tal ten ti to va vel vi vo za".split()
END_FIRST = "a e i o ia in is ek en na ra ro ne el la us an or".split()
END_LAST = "son sen man berg ski ley ton er ova ez ini ard well ford wick ström lund ter dal mann ic by ham sky ing".split()

TOWNS = """Ashford Brenmouth Calder Dunmore Eastwick Fairhaven Glenrock Halden Inverly Jasperton Kingsbay Larkfield Millbrook
Northgate Oakhurst Pinewood Quarrytown Redcliff Silverton Thornbury Upton Valemont Westbrook Yarrow Zellwood Amberley
Bellport Cranford Driftwood Elmstead Foxley Greystone Harrowgate Ironbridge Juniper Kelso Lowmoor Marlow Newhaven Orford
Penrith Ravensby Stonebridge Tidewater Umberton Vineford Whitby Alton Birchwood Coldwater Deepdale Eskdale Fernhill
Goldcrest Hawksby Islington Kirkwall Linden Merrow Norwick Overton Portsea Rosedale Saltmarsh Tarnside Wexcombe""".split()
TOWN_END = "ford mouth wick haven ton bury field brook stead dale bridge port gate moor stow".split()

JOBS = """accountant, archivist, astronomer, baker, barista, beekeeper, biologist, bookbinder, botanist, brewer, bricklayer, bus driver,
butcher, carpenter, cartographer, chemist, clockmaker, confectioner, courier, curator, customs agent, dentist, designer,
dispatcher, diver, editor, electrician, engineer, farmer, film editor, florist, forester, forklift driver, gardener, geologist,
glassblower, goldsmith, harbor pilot, illustrator, interpreter, inspector, janitor, journalist, judge, lawyer, librarian, locksmith,
machinist, mechanic, meteorologist, midwife, miller, miner, musician, notary, nurse, optician, painter, pastry chef, pharmacist,
photographer, pilot, planner, plumber, potter, printer, programmer, purchaser, receptionist, recruiter, roofer, sailor, saddler,
sculptor, secretary, shoemaker, stonemason, surgeon, surveyor, tailor, teacher, technician, tour guide, toolmaker, trainer,
translator, truck driver, upholsterer, usher, veterinarian, violinist, waiter, warehouse clerk, watchmaker, weaver, welder,
writer, zoologist""".replace("\n", " ").split(", ")

COLORS = "red blue green yellow orange purple white black brown grey silver golden old new small large wooden heavy antique striped".split()
THINGS = "bicycle,kettle,umbrella,violin,telescope,canoe,lantern,typewriter,camera,suitcase,accordion,armchair,backpack,banjo,bookshelf,boat,caravan,cello,chess set,clock,compass,drum,easel,fountain pen,guitar,hammock,hat,jacket,kayak,ladder,lamp,loom,map,mirror,motorcycle,oven,parrot,piano,quilt,radio,rocking chair,saddle,sailboat,scarf,sewing machine,sled,surfboard,teapot,tent,tractor,trumpet,van,vase,wagon,watch,wheelbarrow".split(",")
HOBBIES = "pottery,chess,sailing,baking,hiking,knitting,photography,fencing,gardening,rowing,painting,cycling,astronomy,birdwatching,calligraphy,climbing,swimming,juggling,origami,archery,surfing,skiing,woodcarving,dancing,singing,fishing,table tennis,board games,crossword puzzles,old films,mountain biking,yoga,running,karate,model trains".split(",")
TEAMS = "logistics,finance,sales,design,research,support,security,planning,quality,training,legal,marketing,catering,purchasing,packing,delivery,maintenance,night shift,customs,personnel,laboratory,harbor,pastry,fleet,export,archive,web,data,safety,warehouse".split(",")

WIFI = "guest,staff,office,warehouse,workshop,bakery,shop,harbor,kitchen,visitor,laboratory,training,depot,lobby".split(",")
PLACES = "warehouse,bakery,workshop,main office,canteen,library,garage,harbor depot,front desk,archive,loading bay,cold store,shop,gym,laboratory,server room,kitchen,cellar,showroom,mail room,boiler room,visitor center,training center,parking deck,east gate,west gate,repair shop,print room,tool room,back office".split(",")
PRODUCTS = "rye loaf,almond cake,poppy roll,apple tart,cheese pretzel,sourdough loaf,walnut bread,cinnamon bun,plum pie,honey cake,parcel box,wooden crate,steel drum,pallet,moving blanket,day ticket,coffee mug,gift basket,canvas bag,birthday cake,breakfast box,oat biscuit,lemon slice,raisin roll,garlic stick,shipping label,storage unit,weather map,desk lamp,office chair,water bottle,tool kit".split(",")
EVENTS = "staff meeting,fire drill,stock count,summer party,safety training,team breakfast,truck inspection,board meeting,open day,flour delivery,budget review,first aid course,harbor tour,tasting session,kitchen cleaning,waste collection,window cleaning,choir practice,planning round,price review".split(",")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
OBJECTS = "first aid kit,spare keys,label printer,fire blanket,old ledgers,delivery book,pallet jack,flour scale,company van,lost property box,safety vests,cash box,coffee machine,ladder,paper archive,projector,tool chest,winter tires,guest badges,stamp machine,thermometer,hand truck,log book,cleaning supplies".split(",")
ROLES = "safety officer,first aider,fire warden,works council chair,data protection officer,shift leader,head of purchasing,keeper of the keys,union delegate,head of training,press contact,night watch,quality manager,apprentice mentor,head baker,fleet manager,customs contact,press officer,choir leader,canteen manager".split(",")
GOODS = "flour,butter,diesel,packing tape,coffee,milk,salt,paper,sugar,wooden pallets,cheese,yeast,motor oil,cardboard,stretch film,fruit,work clothing,cleaning soap,printer ink,olive oil,rye grain,honey".split(",")
COMPANY_END = "Mills,Freight,Works,Bakery,Foundry,Dairy,Traders,Logistics,Supplies,Farms,Shipping,Brothers Ltd,Paper Company,Motors,Press,Textiles,Glassworks,Energy".split(",")
MACHINES = "oven,dough mixer,forklift,coffee machine,packing line,crane,slicer,dishwasher,boiler,air filter,printer,conveyor belt,cold store door,fire alarm,delivery van,proofing cabinet,label printer,water filter".split(",")
DESKS = "help desk,front desk,night desk,reception,canteen,dispatch office,customs desk,payroll office,repair shop,order desk,harbor office,returns desk".split(",")
ROOMS = "Cedar,Maple,Birch,Willow,Aspen,Juniper Hall,Rowan,Hazel,Alder Hall,Spruce,Linden Hall,Poplar,Elm,Chestnut,Sycamore,Larch".split(",")
PASSWORD = "maple,river,copper,lantern,falcon,winter,harbor,meadow,pepper,silver,anchor,walnut,comet,tulip,granite,saffron,orchid,pebble,thunder,velvet,cobalt,island,marble,ginger,cactus,amber".split(",")

# Ordinary prose: (subject, verb phrase, adjunct) combine freely; FIXED are whole sentences.
SUBJ = """The new regulation,The harbor,The old bridge,The committee,Our supplier,The weather,The annual report,The storage hall,A small delay,The first
delivery,The road to {t},The market in {t},The river near {t},A second audit,The budget,The museum of {t},The new timetable,The canteen menu,The heating
system,The printed catalog,The morning shift,The evening shift,The company newsletter,A visiting group,The main entrance,The elevator,Every
shipment,The packaging,The recipe,The garden behind the office,The insurance,The new software,The town council of {t},The festival in {t},The old mill,A
temporary fence,The parking area,Most customers,Some visitors,The cleaning schedule,The quality of the flour,The price of diesel,The cargo,The customs form,The
archive,The warranty,The customer survey,The training plan,The rain,The winter season,A long discussion,The bus line to {t},The notice board,The order
form,The travel policy,The dress code,The fire door,The waste bin,The fountain,The train from {t},The clock in the hall,The roof of the depot,The
loading ramp,The contract with the carrier,The summer holiday,The oldest document,The harvest""".replace("\n", " ").split(",")
VERB = """was repaired,has been moved,remains unchanged,will be reviewed,was delayed,became much quieter,needs more attention,was discussed at
length,has improved,is closed for now,was painted again,did not change,was a topic of the day,requires a signature,was well received,has to be
checked,was longer than usual,will be replaced,arrived on time,was praised,is open to everyone,caused some confusion,was cheaper than expected,follows
the same rules,was described in the local paper,has a good reputation,is under construction,was counted twice,shows a small profit,must be kept
dry,is older than it looks,was prepared with care,can be seen from the street,attracts many people,has lost some color,depends on the season,is a
matter of taste,was finished early,has been part of the plan,needs a second opinion""".replace("\n", " ").split(",")
ADJ = """ last week, in {m}, after a long winter, because of the rain, on {d}, for the second time, during the holidays, without any problem, as in every
year, according to the plan, before the end of the month, although nobody expected it, since the spring, near the old station, with the help of
volunteers, at the end of the season, despite the high cost, by a narrow margin, until further notice, as the notice explains,,,,""".replace("\n", " ").split(",")
FIXED = """Please keep the corridors free at all times.
Visitors are asked to sign in before they enter the building.
Lunch is served between noon and two in the afternoon.
All receipts must be handed in before the end of the month.
The following notes were taken during the meeting.
This page is updated twice a year.
Nothing in this document replaces the contract of employment.
Questions are welcome at any time.
Tea and coffee are free for everyone in the house.
Parcels are collected twice a day.
If the alarm sounds, leave the building by the nearest exit.
Smoking is not allowed inside the buildings.
Overtime has to be agreed in advance.
The minutes are kept in the archive.
Damaged goods are set aside and counted on the next day.
Please report broken lights as soon as possible.
There were no further comments.
The list below is not complete.
Bicycles may be parked behind the building.
Travel costs are paid back within a month.
A good loaf needs time, warmth and patience.
Ships wait outside the bay when the wind is strong.
Trucks must not block the gate.
Bread that is left over goes to the food bank.
Time sheets are due every second Friday.
New colleagues receive a short tour on their first day.
The winter was mild and the roads stayed clear.
Good maps are worth their price.
It rained for most of the day.
Nobody could say how old the building really is.
A second copy is kept in a safe place.
Orders that arrive after noon are handled on the next working day.
Safety shoes are required in all halls.
Please switch off the lights when you leave.
The menu changes with the seasons.
Confidential papers belong in the locked bin.
What matters most is that the work is done with care.
In the end, the plan was accepted with small changes.
However, the costs were higher than in the year before.
There is more information on the notice board.""".split("\n")

SYSTEMS = [
    "You answer questions from the documents.",
    "You are a helpful assistant.",
    "Answer the question using only the documents given. If they do not contain the answer, say so.",
    "You are the assistant of a company. Use the documents to answer. Be brief.",
    "Use the following documents to answer the user's question.",
    "You are a careful assistant. Answer in one short sentence.",
    "Answer from the documents below. If the answer is not in them, reply: The documents do not say.",
    "You are an internal knowledge assistant. Answer truthfully and briefly from the context.",
    "Context documents are provided. Rely on them and on nothing else.",
    "You help employees find facts in company documents.",
    "Read the documents, then answer.",
    "You are a question answering system.",
]
TITLES = "Staff directory,Staff notes,Handbook,Company handbook,Directory,New colleagues,Contacts,Meeting notes,Notes,People,Team page,Who is who,House rules,Internal newsletter,Site guide,Harbor news,Team overview,Personnel file,Telephone list,Office guide,Weekly report,Supplier list,Opening times,Depot notes".split(",")
